-- sources: mysql mariadb
create table t (id bigint not null, v int not null, primary key (id, v));
insert into t values (1, 70000), (2, 100);
-- the pipeline is started
-- a pause of 1
alter table t drop primary key, add primary key (id), modify column v int null;
insert into t values (3, null);
