-- sources: mysql mariadb
create table t (id bigint not null, c varchar(20) default 'a', n int, unique key u1 (c, id));
create table k (id bigint primary key, c varchar(20) default 'a', n int, unique key u1 (c, id));
create table g (id bigint primary key, c int, n int, unique key u1 (c, n));
insert into t (id, n) values (1, 100);
insert into k (id, n) values (1, 100);
insert into g values (1, 1, 7), (2, 2, 8);
-- the pipeline is started
alter table t drop index u1, drop column c, add column c varchar(20) null;
alter table k drop index u1, drop column c, add column c varchar(20) null;
alter table g drop index u1, drop column c;
insert into t (id, n) values (2, 100);
insert into k (id, n) values (2, 100);
insert into g values (3, 8);
