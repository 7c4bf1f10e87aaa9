CREATE TABLE wirekite.bulk_1 (id int NULL)
;;
INSERT INTO wirekite.t_wkm (id) VALUES (1)
;;
SELECT @@LOCK_TIMEOUT AS ms
;;
SELECT @@TRANCOUNT AS count_
;;
SELECT TOP (0) 1 AS one FROM wirekite.bulk_1 WITH (TABLOCKX, HOLDLOCK)
;;
SELECT TOP (0) 1 AS one FROM wirekite.t_wkm WITH (TABLOCKX, HOLDLOCK)
;;
SELECT sys.fn_cdc_get_min_lsn(N'dbo_c_gated'), sys.fn_cdc_get_min_lsn(N'dbo_c_open')
;;
select count(*) /* slow */ from dbo.t as a, dbo.t as b, dbo.t as c where c.id <= 40
;;
select id from dbo.t where 1 = 1
;;
select id, v from dbo.t where true
;;
