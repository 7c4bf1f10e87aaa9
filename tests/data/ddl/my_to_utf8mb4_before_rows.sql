-- sources: mysql mariadb
create table t (id int primary key, v varchar(20)) default character set latin1;
insert into t values (1, 'é');
-- the pipeline is started
alter table t convert to character set utf8mb4;
-- a pause of 1
insert into t values (2, '😀');
