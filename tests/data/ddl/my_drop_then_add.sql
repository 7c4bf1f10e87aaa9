-- sources: mysql mariadb
create table t (id int primary key, c int);
insert into t values (1, 1), (2, 2);
-- the pipeline is started
insert into t values (3, 3);
alter table t drop column c;
alter table t add column c int not null default 9;
insert into t values (4, 4);
