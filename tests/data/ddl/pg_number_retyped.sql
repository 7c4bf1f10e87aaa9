-- sources: postgres
create table "t" ("id" bigint not null, "a" numeric(10,2), "b" numeric(8,0), primary key ("id"));
insert into "t" values (1, 1.25, 5), (2, -3.5, null), (3, 0, 70000);
create table "k" ("n" numeric(6,2) not null, "v" text, primary key ("n"));
insert into "k" values (1, 'a'), (2.5, 'b');
-- the pipeline is started
update "t" set "a" = 2.5 where "id" = 1;
alter table "t" alter column "a" type numeric;
insert into "t" values (4, 1.2345, 1);
alter table "t" alter column "b" type numeric(12,0);
update "t" set "b" = 123456789, "a" = null where "id" = 2;
-- a pause of 1
alter table "t" rename column "a" to "x";
alter table "t" alter column "b" type numeric;
update "t" set "b" = 1.5 where "id" = 3;
alter table "k" alter column "n" type numeric;
update "k" set "v" = 'c' where "n" = 2.5;
insert into "k" values (3.125, 'd');
delete from "k" where "n" = 1;
