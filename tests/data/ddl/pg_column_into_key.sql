-- sources: postgres
create table n (id integer primary key, c integer);
insert into n values (1, 1), (2, 2);
-- the pipeline is started
begin;
alter table n add column b bigint default length('abc');
alter table n drop constraint n_pkey, add primary key (b, id);
commit;
alter table n rename column id to c2;
alter table n add column v varchar(20);
insert into n (c2, c, b, v) values (7, 1, 5, 'x'), (2, 8, 5, 'y');
update n set c = 9 where c2 = 2 and b = 3;
