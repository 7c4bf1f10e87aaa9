-- sources: mysql mariadb
create table `w` (`id` varchar(20) collate utf8mb4_bin not null, `Foo` char(10) default 'ab  ', primary key (id));
insert into `w` (`id`) values ('A0');
insert into `w` (`id`, `Foo`) values ('a1', null), ('A1', ''), ('a2', 'a');
-- the pipeline is started
begin;
insert into `w` (`id`) values ('A2'), ('a3');
delete from `w` where `id` = 'A0';
update `w` set `Foo` = '' where `id` = 'A1';
update `w` set `Foo` = 'a' where `id` = 'A2';
commit;
update `w` set `Foo` = '';
truncate table `w`;
begin;
insert into `w` (`id`, `Foo`) values ('A3', null), ('a4', null);
update `w` set `Foo` = 'xy' where `id` = 'a4';
insert into `w` (`id`, `Foo`) values ('A4', null);
commit;
set sql_mode = '';
-- a pause of 1
-- a pause of 1
alter table `w` modify column `fOO` char(10) null;
update `w` set `fOO` = 'A' where `id` = 'A4';
insert into `w` (`id`, `fOO`) values ('a5', null), ('A5', 'A');
alter table `w` add column `order` datetime null default current_timestamp, add column `a` datetime(3) null default current_timestamp(3);
begin;
insert into `w` (`id`, `order`, `a`) values ('a6', '2020-02-29 12:00:00', '1999-12-31 23:59:59'), ('A6', '1999-12-31 23:59:59', null), ('a7', '2024-06-01 00:30:00', '2020-02-29 12:00:00');
insert into `w` (`id`, `fOO`, `a`) values ('A7', '', '2024-06-01 00:30:00'), ('a8', null, null), ('A8', '', '2024-06-01 00:30:00');
commit;
insert into `w` (`id`, `fOO`, `order`, `a`) values ('a9', 'é', '1999-12-31 23:59:59', '2024-06-01 00:30:00'), ('A9', 'é', null, '1999-12-31 23:59:59'), ('a10', 'xy', '1999-12-31 23:59:59', '2024-06-01 00:30:00');
