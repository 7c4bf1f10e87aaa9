-- sources: mysql mariadb
create table `t` (`id` bigint not null, `a` decimal(10,2), `b` int, `c` smallint, `d` bit(8), primary key (`id`));
insert into `t` values (1, 1.25, 5, -7, b'101'), (2, -3.50, null, 100, 7), (3, null, 70000, 0, null);
create table `k` (`n` int not null, `v` varchar(20), primary key (`n`));
insert into `k` values (1, 'a'), (2, 'b');
-- the pipeline is started
update `t` set `a` = 2.5 where `id` = 1;
alter table `t` modify column `a` decimal(14,4) null;
insert into `t` values (4, 1.2345, 1, 1, 1);
alter table `t` modify column `b` decimal(14,2) null;
update `t` set `b` = 1.25, `a` = null where `id` = 2;
-- a pause of 1
alter table `t` modify column `c` bigint unsigned null;
alter table `t` modify column `c` bigint null;
alter table `t` modify column `d` bit(64) null;
update `t` set `d` = b'11', `c` = 9 where `id` = 1;
alter table `t` rename column `a` to `x`, modify column `b` decimal(20,6) null;
delete from `t` where `id` = 3;
alter table `k` modify column `n` decimal(14,3) not null;
update `k` set `v` = 'c' where `n` = 2;
insert into `k` values (3.125, 'd');
delete from `k` where `n` = 1;
