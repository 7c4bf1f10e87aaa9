-- sources: mysql mariadb
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
alter table t add column a varchar(9) default _utf8mb4'é', add column b varchar(9) default N'é', add column c date default DATE'2024-01-02';
alter table t add column d binary(3) not null, add column e blob not null;
insert into t (id, d, e) values (2, 'x', 'y');
