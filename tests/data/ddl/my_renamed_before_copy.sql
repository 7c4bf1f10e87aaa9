-- sources: mysql mariadb
create table l (id varchar(20) not null, v int, c double);
insert into l values ('a', 1, 0.5), ('b', null, null);
-- the pipeline is started
update l set v = 2 where id = 'a';
alter table l drop column v, add column v bool null default 0;
update l set c = 3;
alter table l rename to z;
insert into z (id) values ('c');
