-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
alter table t add c1 int not null default 2024;
alter table t rename column c1 to x;
alter table t add c1 int not null default 70;
insert into t values (2, 1, 1);
