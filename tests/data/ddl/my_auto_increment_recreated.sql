-- sources: mysql mariadb
create table w (id int not null auto_increment, b text null, primary key (id));
-- the pipeline is started
drop table w;
create table w (id varchar(20) not null, c date null);
insert into w values ('a', '2020-02-29'), ('b', null);
