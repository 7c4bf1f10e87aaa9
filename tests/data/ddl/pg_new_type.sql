-- sources: postgres
create table t (id int primary key);
insert into t values (1);
-- the pipeline is started
create type mood as enum ('sad', 'ok');
alter table t add column m mood not null default 'ok';
insert into t values (2, 'sad');
