-- sources: postgres
create table t (id int primary key, a int, b int, "g h" int generated always as (a + 1) stored);
create table u (id int primary key, a int, g bigint generated always as (a * 2) stored);
create table v (id int primary key, a int);
create table w (id int primary key, a int, g int generated always as (a - 1) stored);
insert into t values (1, 1, 1), (2, null, 2);
insert into u values (1, 1), (2, 2);
insert into v values (1, 1), (2, 2);
insert into w values (1, 1);
-- the pipeline is started
alter table v add column g int generated always as (a * 10) stored;
insert into v values (3, 3);
alter table t rename column "g h" to g2;
alter table t drop column a cascade;
insert into t values (3, 3);
alter table u drop column g, add column g int;
insert into u values (3, 3, 33);
-- a pause of 2
alter table w drop column g, alter column a type bigint, add column g bigint generated always as (a + 100) stored;
insert into w values (2, 2);
begin;
alter table v rename column a to z;
alter table v add column y int default 5, add column h int generated always as (z + 1) stored;
commit;
insert into v values (4, 4, 4);
alter table t add column k text generated always as (upper(b::text)) stored;
