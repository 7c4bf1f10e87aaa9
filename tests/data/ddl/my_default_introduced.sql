-- sources: mysql mariadb
create table k (id int primary key);
insert into k values (1);
-- the pipeline is started
set names latin1;
alter table k add column o varchar(20) character set latin1 null default _utf8mb4'é' first;
insert into k (id) values (2);
