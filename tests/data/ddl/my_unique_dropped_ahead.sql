-- sources: mysql mariadb
create table t (id int primary key, v float, u bigint, w int, unique key u1 (u), unique key u2 (w));
insert into t values (1, 1, 1, 1);
-- the pipeline is started
-- a pause of 1
alter table t drop index u1;
insert into t values (2, null, 1, 2), (3, null, 1, 3);
alter table t drop column v;
insert into t values (4, 5, 4);
