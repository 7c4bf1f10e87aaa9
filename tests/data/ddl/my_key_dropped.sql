-- sources: mysql mariadb
create table t (id int not null primary key, v int);
insert into t values (1, 1);
-- the pipeline is started
alter table t drop primary key;
insert into t values (1, 2), (1, 2);
