-- sources: postgres
create table t (id int primary key, v varchar(20) default 'it''s \ é');
insert into t values (1, 'a');
-- the pipeline is started
-- a pause of 1
alter table t alter column v type text;
insert into t (id) values (2);
