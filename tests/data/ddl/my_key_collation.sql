-- sources: mysql mariadb
create table t (k varchar(20) character set utf8mb4 collate utf8mb4_general_ci primary key, v int);
insert into t values ('a', 1);
-- the pipeline is started
alter table t modify k varchar(20) character set utf8mb4 collate utf8mb4_bin not null;
insert into t values ('A', 2);
