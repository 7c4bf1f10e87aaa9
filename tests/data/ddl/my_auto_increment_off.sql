-- sources: mysql mariadb
create table t (id int not null auto_increment primary key, v int);
insert into t values (1, 1);
-- the pipeline is started
alter table t modify id int not null;
alter table t drop primary key, add primary key (v);
insert into t values (2, 2);
