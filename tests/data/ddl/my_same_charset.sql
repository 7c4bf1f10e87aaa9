-- sources: mysql mariadb
create table t (id int primary key, c varchar(20) character set latin1);
insert into t values (1, 'é');
-- the pipeline is started
alter table t modify c varchar(40) character set latin1;
insert into t values (2, 'ü');
