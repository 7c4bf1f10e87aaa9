-- sources: mariadb
create table k (id int primary key, b float);
create table r (id int primary key, b int);
insert into k values (1, 1);
insert into r values (1, 1);
-- the pipeline is started
-- a pause of 1
create or replace table k (id int primary key, x tinyint default x'41');
alter table r rename to n;
insert into n values (2, 2);
