-- sources: mysql mariadb
create table r1 (id int primary key, a int);
create table r2 (id int primary key, a int);
create table busy (id int primary key);
insert into r1 values (1, 1), (2, 2);
insert into r2 values (1, 1), (2, 2);
-- the pipeline is started
insert into busy values (1);
alter table r1 rename column a to a2;
insert into busy values (2);
-- a pause of 1
alter table r2 rename column a to a2;
insert into busy values (3);
