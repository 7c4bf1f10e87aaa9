-- sources: mysql mariadb
create table t (id int primary key, v int);
insert into t values (1, 1), (2, 2);
-- the pipeline is started
-- a pause of 1
set sql_mode = '';
alter table t add column d datetime(3) not null first, add column day date not null;
-- a pause of 1
insert into t (id, v, d, day) values (3, 3, '2024-01-02 03:04:05', '2024-01-02');
alter table t add column s timestamp not null default 0;
insert into t (id, v) values (4, 4);
