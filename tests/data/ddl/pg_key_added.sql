-- sources: postgres
create table "Item" ("id" bigint not null, "x" inet);
alter table "Item" replica identity full;
insert into "Item" ("id", "x") values (1, '10.0.0.1'), (2, '::1');
-- the pipeline is started
alter table "Item" add primary key ("id");
insert into "Item" ("id", "x") values (3, '::1');
-- a pause of 2
insert into "Item" ("id", "x") values (4, '10.0.0.1');
update "Item" set "x" = '::1';
-- a pause of 1
insert into "Item" ("id", "x") values (5, '::1'), (6, '10.0.0.1'), (7, '10.0.0.1');
