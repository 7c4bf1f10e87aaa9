-- sources: postgres
create table "t" ("id" bigint not null, "a" integer, primary key (id));
insert into "t" ("id", "a") values (1, -7), (2, 1), (3, 100);
-- the pipeline is started
alter table "t" add constraint u1 unique ("a");
alter table "t" add column "v" serial;
-- a pause of 2
begin;
alter table "t" drop constraint u1;
insert into "t" ("id", "a", "v") values (5, 100, 70000), (6, -7, 5);
commit;
