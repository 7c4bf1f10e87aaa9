-- sources: mysql mariadb
create table t1 (id int not null, x int not null, primary key (x, id));
insert into t1 values (1, 7);
insert into t1 values (2, 8);
-- the pipeline is started
insert into t1 values (5, 6);
alter table t1 drop column x, add column x int null;
insert into t1 (id, x) values (6, 7);
