-- sources: mysql mariadb
create table t (id int not null, b varchar(20) null, primary key (id));
insert into t values (1, 'é'), (2, '😀');
-- the pipeline is started
insert into t values (3, '😀');
set sql_mode = '';
alter table t modify column b varchar(20) character set latin1 collate latin1_bin null;
-- a pause of 1
insert into t values (4, 'a');
