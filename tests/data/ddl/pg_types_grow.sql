-- sources: postgres
create type mood as enum ('sad', 'ok', 'happy');
create table t (id int primary key, m mood);
insert into t values (1, 'happy');
-- the pipeline is started
alter type mood add value 'low' before 'sad';
alter table t add column n mood not null default 'low';
insert into t values (2, 'low', 'ok');
-- a pause of 1
alter type mood rename value 'happy' to 'glad';
insert into t values (3, 'glad', 'glad');
-- a pause of 1
create domain small as integer check (value < 100);
create type spot as (x small, y text);
create table u (id int primary key, s spot, d small[]);
insert into u values (1, '(1,a)', '{1,2}');
alter table t add column s spot default '(7,b)', add column d small;
