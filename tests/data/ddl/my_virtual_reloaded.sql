-- sources: mysql mariadb
create table t (id bigint not null, b varchar(20) collate utf8mb4_bin null, v bigint generated always as (id * 2) virtual, primary key (id));
create table u (id bigint not null, b varchar(20) collate utf8mb4_bin null, v bigint generated always as (id * 2) stored, primary key (id));
insert into t (id, b) values (1, 'a'), (2, 'A');
insert into u (id, b) values (1, 'a'), (2, 'A');
-- the pipeline is started
-- a pause of 1
alter table t convert to character set latin1;
alter table u convert to character set latin1;
insert into t (id, b) values (3, 'b');
insert into u (id, b) values (3, 'b');
-- a pause of 1
alter table t drop column b, add column b char(10) null;
alter table u drop column b, add column b char(10) null;
