select count(*) /* slow */ from "SHOP"."t" a, "SHOP"."t" b, "SHOP"."t" c where c."id" <= 40
;;
select "id" from "SHOP"."t" AS OF SCN 1 where 1 = 1
;;
select "id" from "SHOP"."t" AS OF SCN 1 where ROWID < CHARTOROWID('AAAV+RAAHAAAACrAAA')
;;
select "id" from "SHOP"."t" AS OF SCN 1 where ROWID >= CHARTOROWID('AAAV+RAAHAAAACrAAA') AND ROWID < CHARTOROWID('AAAV+RAAHAAAACzAAA')
;;
select "id" from "SHOP"."t" AS OF SCN 1 where ROWID >= CHARTOROWID('AAAV+RAAHAAAADzAAA')
;;
CREATE TABLE "WIREKITE"."DIRECT_44C88892_1_ECE3CF_0" (
    "C1" NUMBER(10) NULL,
    "C2" NUMBER(10) NULL,
    "C3" VARCHAR2(4000 BYTE) NULL,
    "C4" CLOB NULL
)
;;
CREATE TABLE "WIREKITE"."DIRECT_F436397A_1_FEE935_0" (
    "C1" NUMBER(10) NULL,
    "C2" VARCHAR2(4000 BYTE) NULL
)
;;
