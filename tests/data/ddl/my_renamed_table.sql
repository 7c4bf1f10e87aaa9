-- sources: mysql mariadb
create table a (id int primary key, v int);
create table b (id int primary key, w varchar(9));
create table c (id int primary key, v int);
create table d (id int primary key, v int);
create table e (id int primary key, v int);
insert into a values (1, 1), (2, 2);
insert into b values (1, 'one');
insert into c values (7, 7);
insert into d values (4, 4);
insert into e values (5, 5), (6, 6);
-- the pipeline is started
insert into a values (3, 3);
rename table a to tmp, b to a, tmp to b;
update a set w = 'two';
insert into b values (4, 4);
-- a pause of 2
alter table c rename to c2;
insert into c2 values (8, 8);
alter table c2 add column x int default 3;
update c2 set v = 70 where id = 7;
-- a pause of 1
drop table d;
alter table e rename to d;
update d set v = 50;
-- a pause of 2
create table c (nr bigint primary key, w varchar(9));
insert into c values (5, 'x');
alter table d rename to e;
delete from e where id = 6;
