-- sources: mysql mariadb
create table t (id int primary key, v int);
insert into t values (1, 1), (2, 2);
-- the pipeline is started
-- a pause of 1
alter table t add column b binary(5) null default 0x41, add column c varbinary(20) not null default x'00ff', add column d date not null;
insert into t (id, v, b, d) values (3, 3, x'00', '2024-01-02');
-- a pause of 1
update t set v = 5 where id = 3;
insert into t (id, v, d) values (4, 4, '2024-01-03');
