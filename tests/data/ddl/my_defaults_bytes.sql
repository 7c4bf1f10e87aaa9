-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
alter table t add column a varbinary(20) not null default x'00ff', add column b binary(5) default 'ab', add column c bit(8) default '5';
insert into t (id) values (2);
