-- sources: postgres
create table "Z" ("id" integer not null, "q" numeric, "u" text[], primary key (id));
insert into "Z" values (1, 0, '{a,"b c"}'), (2, 1.25, '{a,"b c"}');
-- the pipeline is started
alter table "Z" rename column "q" to "c1";
begin;
alter table "Z" alter column "u" type timestamp(3) using '2020-02-29 12:00:00.123'::timestamp(3);
alter table "Z" rename column "id" to "sp ace";
commit;
-- a pause of 2
insert into "Z" ("sp ace", "c1", "u") values (4, null, null);
