-- sources: postgres
create table k9 (id integer not null, c1 varchar(20), x numeric(10,2), b date, primary key (id), constraint u1 unique (c1));
insert into k9 (id, c1, b) values (1, 'é', '2020-02-29');
-- the pipeline is started
-- a pause of 1
begin;
alter table k9 alter column c1 set not null, add column v timestamptz default now();
update k9 set c1 = 'é' where id = 2;
commit;
alter table k9 drop column b, add column b date default '2024-01-02', drop constraint k9_pkey, add primary key (id, c1);
begin;
create type mood as enum ('sad', 'ok', 'happy');
alter table k9 alter column c1 type mood using 'ok'::mood;
alter table k9 rename column id to c2;
commit;
alter table k9 add column a double precision default random();
