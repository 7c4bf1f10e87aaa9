-- sources: postgres
create table t (id int primary key, a uuid);
insert into t values (1, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
-- the pipeline is started
alter table t drop column a, add column a bit(8) default b'00000001';
insert into t values (2, b'00000010');
