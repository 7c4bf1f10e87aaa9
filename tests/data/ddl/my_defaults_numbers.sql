-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
alter table t add column a int default 1.6, add column b decimal(10,2) default 1.235, add column c bit(8) default b'101', add column d decimal(4,2) default -.5, add column e int default 0x41;
insert into t (id) values (2);
