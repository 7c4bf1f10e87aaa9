-- sources: mysql mariadb
create table p (id bigint not null auto_increment, b decimal(14,4) default 1.23456, primary key (id));
insert into p (id) values (1);
-- the pipeline is started
drop table p;
create table p (id int not null, q decimal(10,2) null);
insert into p values (1, null), (2, 1);
