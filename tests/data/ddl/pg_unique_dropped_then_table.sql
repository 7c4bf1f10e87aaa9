-- sources: postgres
create table n (id integer not null, a integer default 3, constraint u1 unique (a));
alter table n replica identity full;
insert into n values (1, 70000);
create table m (id integer primary key, a integer, constraint u2 unique (a));
insert into m values (1, 70000);
-- the pipeline is started
insert into m values (2, 5);
begin;
alter table n drop constraint u1;
insert into n values (2, 0), (4, 70000);
commit;
alter table m drop constraint u2;
insert into m values (3, 5);
begin;
drop table n;
create table n (id integer not null, v text, primary key (id));
commit;
drop table m;
create table m (id integer primary key, v text);
insert into n values (1, 'x');
insert into m values (1, 'x');
