-- sources: mysql mariadb
create table t (id int primary key, x enum('a','b','C','d') default 'D', v varchar(20) default 'a long text');
insert into t values (1, null, 'a'), (2, 'a', 'b');
-- the pipeline is started
-- a pause of 1
alter table t modify column x enum('a','b','C','d') null, modify column v varchar(20);
insert into t values (3, 'b', 'c');
-- a pause of 1
alter table t modify column x enum('a','b','C') null, modify column v varchar(3);
insert into t values (4, 'C', 'd');
