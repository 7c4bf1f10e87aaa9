-- sources: mysql mariadb
create table t (id int primary key, e enum('a','b'), s set('a','b'));
insert into t values (1, 'a', 'a,b'), (2, 'b', 'b');
-- the pipeline is started
alter table t modify e enum('A','b'), modify s set('A','b');
insert into t values (3, 'A', 'A');
