-- sources: postgres
create table n (id bigint not null, x jsonb default '{}', v bit varying(8));
alter table n replica identity full;
insert into n values (1, '{"a": 1}', b'101'), (2, '{"a": 1}', b'101');
create table k (id bigint primary key, x jsonb default '{}');
insert into k values (1, '{"a": 1}'), (2, '{"a": 1}');
-- the pipeline is started
begin;
alter table n add column y jsonb not null default '{}';
alter table n rename column y to tmp;
alter table n rename column x to y;
alter table n rename column tmp to x;
alter table k add column y jsonb not null default '{}';
alter table k rename column y to tmp;
alter table k rename column x to y;
alter table k rename column tmp to x;
commit;
alter table n add column c interval not null default '1 day 2:00';
update n set c = '1 day' where id = 2;
insert into k values (3, '[]', '[]');
