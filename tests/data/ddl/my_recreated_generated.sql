-- sources: mysql mariadb
create table t (id int not null, sp timestamp null, b enum('a','b','C','d') null, primary key (id));
create table u (id int not null, sp timestamp null, b enum('a','b','C','d') null, primary key (id));
insert into t values (1, '1999-12-31 23:59:59', null);
insert into u values (1, '1999-12-31 23:59:59', null);
-- the pipeline is started
alter table t modify column b enum('a','b','C','d') not null, add column Foo bigint generated always as (id * 2) stored;
update t set b = 'b';
insert into t (id, b) values (2, 'a'), (3, 'b');
-- a pause of 2
drop table t;
create table t (nr int not null, b int null, primary key (nr));
-- a pause of 2
insert into t (nr, b) values (1, 70000), (2, 70000), (3, 100);
update t set b = 1 where nr = 1;
-- a pause of 2
drop table u;
create table u (nr int not null, b int null, primary key (nr));
insert into t (nr, b) values (4, 1);
