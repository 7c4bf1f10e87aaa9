-- sources: mariadb
create table `t` (`id` int not null, `a` int null, primary key (`id`));
insert into `t` (`id`, `a`) values (1, 1), (2, 2), (3, 3), (4, 4);
alter table `t` add column `b` json not null;
-- the pipeline is started
update `t` set `a` = 7 where `id` = 2;
insert into `t` (`id`, `a`, `b`) values (5, 5, '{"c": 1}');
delete from `t` where `id` = 4;
-- a pause of 1
alter table `t` add column `d` json not null;
update `t` set `a` = 8 where `id` = 3;
