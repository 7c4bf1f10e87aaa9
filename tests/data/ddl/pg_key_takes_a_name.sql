-- sources: postgres
create table w (id bigint primary key, c1 text[]);
insert into w values (1, '{a}');
-- the pipeline is started
-- a pause of 1
begin;
drop table w;
create table w (id int primary key, x char(10));
alter table w rename column id to c1;
commit;
insert into w values (1, 'a'), (2, 'b');
