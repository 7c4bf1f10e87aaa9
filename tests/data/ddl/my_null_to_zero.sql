-- sources: mysql mariadb
create table `or der` (`id` varchar(20) not null, `b` datetime(3) null, `order` datetime null, primary key (id));
insert into `or der` (`id`, `b`, `order`) values ('A0', '1999-12-31 23:59:59', '1999-12-31 23:59:59'), ('a1', '1999-12-31 23:59:59', null);
insert into `or der` (`id`, `b`, `order`) values ('A2', '1999-12-31 23:59:59', '2020-02-29 12:00:00');
-- the pipeline is started
set sql_mode = '';
alter table `or der` modify column `order` datetime not null;
-- a pause of 1
update `or der` set `order` = '1999-12-31 23:59:59' where `id` = 'A0';
