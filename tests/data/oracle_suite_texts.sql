select count(*) /* slow */ from "SHOP"."t" a, "SHOP"."t" b, "SHOP"."t" c where c."id" <= 40
;;
select "id" from "SHOP"."t" AS OF SCN 1 where 1 = 1
;;
select "id" from "SHOP"."t" AS OF SCN 1 where ROWID < CHARTOROWID('AAAV+RAAHAAAACrAAA')
;;
select "id" from "SHOP"."t" AS OF SCN 1 where ROWID >= CHARTOROWID('AAAV+RAAHAAAACrAAA') AND ROWID < CHARTOROWID('AAAV+RAAHAAAACzAAA')
;;
select "id" from "SHOP"."t" AS OF SCN 1 where ROWID >= CHARTOROWID('AAAV+RAAHAAAADzAAA')
