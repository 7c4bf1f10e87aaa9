-- sources: mysql mariadb
create table n (id int primary key, c int);
insert into n values (1, 1), (2, 2);
-- the pipeline is started
alter table n add column b bigint not null default 3, drop primary key, add primary key (b, id);
alter table n rename column id to c2;
alter table n add column v varchar(20);
insert into n (c2, c, b, v) values (7, 1, 5, 'x'), (2, 8, 5, 'y');
update n set c = 9 where c2 = 2 and b = 3;
