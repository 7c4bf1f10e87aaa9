-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
alter table t add column a varchar(20) not null default x'4142', add column b varchar(20) default 'a' 'b', add column c char(10) default 'ab  ', add column d enum('a','b') default 'B', add column e set('a','b','c') default 'c,a';
insert into t (id) values (2);
