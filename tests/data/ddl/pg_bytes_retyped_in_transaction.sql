-- sources: postgres
create table "Item" ("id" integer not null, "a" timestamp(3), "v" char(10), primary key (id));
alter table "Item" replica identity full;
insert into "Item" ("id", "a", "v") values (1, '2020-02-29 12:00:00.123', 'xy'), (2, null, ''), (3, '2020-02-29 12:00:00.123', 'xy');
create table "k9" ("id" bigint not null, "x" bytea, primary key (id));
alter table "k9" replica identity full;
insert into "k9" ("id", "x") values (1, '\x00ff');
insert into "k9" ("id") values (2);
-- the pipeline is started
-- a pause of 2
insert into "k9" ("id", "x") values (3, null), (4, '\x');
insert into "k9" ("id", "x") values (5, '\x00ff');
begin;
update "k9" set "x" = '\x00ff';
alter table "k9" add column "a" timestamptz default now(), alter column "x" type smallint using 1::smallint;
update "Item" set "v" = 'xy' where "id" = 1;
update "k9" set "a" = '2020-02-29 12:00:00+02' where "id" = 5;
commit;
delete from "k9" where "id" = 1;
