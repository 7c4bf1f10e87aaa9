-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1), (2);
-- the pipeline is started
-- a pause of 1
set sql_mode = '';
alter table t add column x enum('a','b') null;
alter table t modify column x enum('a','b') not null;
insert into t values (3, 'b');
