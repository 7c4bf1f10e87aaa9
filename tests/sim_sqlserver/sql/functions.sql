-- Functions of T-SQL as ms_<name>; a name of a part of a date comes as a text.
create function simfn.ms_len(anyelement) returns int language sql immutable as $$ select sim.utf16_length(rtrim($1::text, ' ')::bpchar) $$;
create function simfn.ms_datalength(bytea) returns int language sql immutable as 'select octet_length($1)';
create function simfn.ms_datalength(text) returns int language sql immutable as 'select octet_length($1)';
create function simfn.ms_datalength(bpchar) returns int language sql immutable as 'select octet_length($1)';
create function simfn.ms_datalength_n(text) returns int language sql immutable as 'select sim.utf16_length($1::bpchar) * 2';
create function simfn.ms_sysutcdatetime() returns timestamp language sql volatile as $$ select clock_timestamp() at time zone 'utc' $$;
create function simfn.ms_sysdatetime() returns timestamp language sql volatile as $$ select clock_timestamp() at time zone 'utc' $$;
create function simfn.ms_getdate() returns timestamp language sql volatile as $$ select sim.store_datetime(clock_timestamp() at time zone 'utc') $$;
create function simfn.ms_getutcdate() returns timestamp language sql volatile as $$ select sim.store_datetime(clock_timestamp() at time zone 'utc') $$;
create function simfn.ms_current_timestamp() returns timestamp language sql volatile as 'select simfn.ms_getdate()';
create function simfn.ms_sysdatetimeoffset() returns bpchar language sql volatile as $$
    select sim.store_dto(to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '0+00:00')::bpchar $$;
create function simfn.ms_newid() returns sim.uniqueidentifier language sql volatile as 'select gen_random_uuid()::sim.uniqueidentifier';
create function simfn.ms_current_timezone() returns text language sql as $$ select 'UTC'::text $$;
create function sim.stamp(value text) returns timestamp language sql immutable strict as $$
    select case when value collate "C" ~ 'Z[+-]' then left(sim.local_of(value), 26)::timestamp
                when value collate "C" ~ '^\s*\d+:\d' then ('1900-01-01 ' || value)::timestamp else value::timestamp end $$;
create function simfn.ms_dateadd(part text, amount numeric, value timestamp) returns timestamp language sql immutable strict as $$
    select case
        when lower(part) in ('year', 'yy', 'yyyy') then value + make_interval(years => amount::int)
        when lower(part) in ('quarter', 'qq', 'q') then value + make_interval(months => 3 * amount::int)
        when lower(part) in ('month', 'mm', 'm') then value + make_interval(months => amount::int)
        when lower(part) in ('day', 'dd', 'd') then value + make_interval(days => amount::int)
        when lower(part) in ('week', 'wk', 'ww') then value + make_interval(weeks => amount::int)
        when lower(part) in ('hour', 'hh') then value + make_interval(hours => amount::int)
        when lower(part) in ('minute', 'mi', 'n') then value + make_interval(mins => amount::int)
        when lower(part) in ('second', 'ss', 's') then value + make_interval(secs => amount::float8)
        when lower(part) in ('millisecond', 'ms') then value + amount * interval '1 millisecond'
        when lower(part) in ('microsecond', 'mcs') then value + amount * interval '1 microsecond'
        when lower(part) in ('nanosecond', 'ns') then value + (amount / 1000) * interval '1 microsecond' end $$;
create function simfn.ms_dateadd(part text, amount numeric, value bpchar) returns timestamp language sql immutable strict
    as 'select simfn.ms_dateadd(part, amount, sim.stamp(value))';
create function simfn.ms_dateadd(part text, amount numeric, value date) returns date language sql immutable strict
    as 'select simfn.ms_dateadd(part, amount, value::timestamp)::date';
create function simfn.ms_datediff_big(part text, a timestamp, b timestamp) returns bigint language sql immutable strict as $$
    select case
        when lower(part) in ('year', 'yy', 'yyyy') then extract(year from b) - extract(year from a)
        when lower(part) in ('month', 'mm', 'm') then (extract(year from b) - extract(year from a)) * 12 + extract(month from b) - extract(month from a)
        when lower(part) in ('day', 'dd', 'd') then b::date - a::date
        when lower(part) in ('hour', 'hh') then extract(epoch from date_trunc('hour', b) - date_trunc('hour', a)) / 3600
        when lower(part) in ('minute', 'mi', 'n') then extract(epoch from date_trunc('minute', b) - date_trunc('minute', a)) / 60
        when lower(part) in ('second', 'ss', 's') then extract(epoch from date_trunc('second', b) - date_trunc('second', a))
        when lower(part) in ('millisecond', 'ms') then extract(epoch from date_trunc('milliseconds', b) - date_trunc('milliseconds', a)) * 1000
        when lower(part) in ('microsecond', 'mcs') then extract(epoch from b - a) * 1000000
        when lower(part) in ('nanosecond', 'ns') then extract(epoch from b - a) * 1000000000 end::bigint $$;
create function simfn.ms_datediff_big(part text, a bpchar, b timestamp) returns bigint language sql immutable strict as 'select simfn.ms_datediff_big(part, sim.stamp(a), b)';
create function simfn.ms_datediff_big(part text, a timestamp, b bpchar) returns bigint language sql immutable strict as 'select simfn.ms_datediff_big(part, a, sim.stamp(b))';
create function simfn.ms_datediff_big(part text, a bpchar, b bpchar) returns bigint language sql immutable strict as 'select simfn.ms_datediff_big(part, sim.stamp(a), sim.stamp(b))';
create function simfn.ms_datediff(part text, a timestamp, b timestamp) returns int language sql immutable strict as 'select simfn.ms_datediff_big(part, a, b)::int';
create function simfn.ms_datediff(part text, a bpchar, b timestamp) returns int language sql immutable strict as 'select simfn.ms_datediff_big(part, a, b)::int';
create function simfn.ms_datediff(part text, a timestamp, b bpchar) returns int language sql immutable strict as 'select simfn.ms_datediff_big(part, a, b)::int';
create function simfn.ms_datediff(part text, a bpchar, b bpchar) returns int language sql immutable strict as 'select simfn.ms_datediff_big(part, a, b)::int';
create function simfn.ms_datepart(part text, value timestamp) returns int language sql immutable strict as $$
    select case
        when lower(part) in ('year', 'yy', 'yyyy') then extract(year from value)
        when lower(part) in ('quarter', 'qq', 'q') then extract(quarter from value)
        when lower(part) in ('month', 'mm', 'm') then extract(month from value)
        when lower(part) in ('day', 'dd', 'd') then extract(day from value)
        when lower(part) in ('dayofyear', 'dy', 'y') then extract(doy from value)
        when lower(part) in ('weekday', 'dw') then extract(dow from value) + 1
        when lower(part) in ('hour', 'hh') then extract(hour from value)
        when lower(part) in ('minute', 'mi', 'n') then extract(minute from value)
        when lower(part) in ('second', 'ss', 's') then trunc(extract(second from value))
        when lower(part) in ('millisecond', 'ms') then trunc(extract(milliseconds from value))::int % 1000
        when lower(part) in ('microsecond', 'mcs') then extract(microseconds from value)::bigint % 1000000
        when lower(part) in ('nanosecond', 'ns') then (extract(microseconds from value)::bigint % 1000000) * 1000
        when lower(part) in ('tzoffset', 'tz') then 0 end::int $$;
create function simfn.ms_datepart(part text, value bpchar) returns int language sql immutable strict as $$
    select case when lower(part) in ('tzoffset', 'tz') then sim.minutes_of(right(value, 6))
        else simfn.ms_datepart(part, sim.stamp(value)) end $$;
create function simfn.ms_year(value timestamp) returns int language sql immutable strict as 'select extract(year from value)::int';
create function simfn.ms_month(value timestamp) returns int language sql immutable strict as 'select extract(month from value)::int';
create function simfn.ms_day(value timestamp) returns int language sql immutable strict as 'select extract(day from value)::int';
create function simfn.ms_switchoffset(value bpchar, shown text) returns bpchar language sql immutable strict as $$ select (left(value, 28) || shown)::bpchar $$;
create function simfn.ms_todatetimeoffset(value timestamp, shown text) returns bpchar language sql immutable strict
    as $$ select sim.store_dto(to_char(value, 'YYYY-MM-DD"T"HH24:MI:SS.US') || '0' || shown)::bpchar $$;
create function simfn.ms_todatetimeoffset(value timestamp, minutes int) returns bpchar language sql immutable strict as $$
    select simfn.ms_todatetimeoffset(value, case when minutes < 0 then '-' else '+' end
        || to_char(abs(minutes) / 60, 'FM00') || ':' || to_char(abs(minutes) % 60, 'FM00')) $$;
create function simfn.ms_eomonth(value timestamp) returns date language sql immutable strict
    as $$ select (date_trunc('month', value) + interval '1 month - 1 day')::date $$;

create function simfn.ms_charindex(wanted text, value text) returns int language sql immutable strict as $$ select strpos(lower(value) collate "C", lower(wanted) collate "C") $$;
create function simfn.ms_left(value text, size int) returns text language sql immutable strict as 'select left($1, $2)';
create function simfn.ms_right(value text, size int) returns text language sql immutable strict as 'select right($1, $2)';
create function simfn.ms_substring(value text, first int, size int) returns text language sql immutable strict
    as 'select substring($1 from $2 for greatest($3, 0))';
create function simfn.ms_substring(value bytea, first int, size int) returns bytea language sql immutable strict
    as 'select substring($1 from $2 for greatest($3, 0))';
create function simfn.ms_replace(value text, a text, b text) returns text language sql immutable strict
    as $$ select replace($1 collate "C", $2 collate "C", $3 collate "C") $$;
create function simfn.ms_upper(text) returns text language sql immutable strict as $$ select upper($1 collate sim."cs") $$;
create function simfn.ms_lower(text) returns text language sql immutable strict as $$ select lower($1 collate sim."cs") $$;
create function simfn.ms_ltrim(text) returns text language sql immutable strict as $$ select ltrim($1, ' ') $$;
create function simfn.ms_rtrim(text) returns text language sql immutable strict as $$ select rtrim($1, ' ') $$;
create function simfn.ms_trim(text) returns text language sql immutable strict as $$ select trim(both ' ' from $1) $$;
create function simfn.ms_stuff(value text, first int, size int, new text) returns text language sql immutable
    as $$ select left($1, $2 - 1) || coalesce($4, '') || substring($1 from $2 + $3) $$;
create function simfn.ms_replicate(value text, times int) returns text language sql immutable strict as 'select repeat($1, $2)';
create function simfn.ms_reverse(value text) returns text language sql immutable strict as 'select reverse($1)';
create function simfn.ms_space(times int) returns text language sql immutable strict as $$ select repeat(' ', $1) $$;
create function simfn.ms_char(code int) returns text language sql immutable strict as 'select chr($1)';
create function simfn.ms_nchar(code int) returns text language sql immutable strict as 'select chr($1)';
create function simfn.ms_unicode(value text) returns int language sql immutable strict as 'select ascii($1)';
create function simfn.ms_ascii(value text) returns int language sql immutable strict as 'select ascii($1)';
create function simfn.ms_quotename(value text) returns text language sql immutable strict
    as $$ select '[' || replace($1 collate "C", ']', ']]') || ']' $$;
create function simfn.ms_parsename(value text, part int) returns text language sql immutable strict as $$
    select (array(select a from unnest(sim.name_parts(value)) with ordinality as x(a, n) order by n desc))[part] $$;
create function sim.name_parts(value text) returns text[] language sql immutable strict as $$
    select array(select coalesce(replace(m[1], ']]', ']'), replace(m[2], '""', '"'), m[3]) from regexp_matches(
        value collate "C", '\[((?:[^\]]|\]\])*)\]|"((?:[^"]|"")*)"|([^.\[\]"]+)', 'g') as x(m)) $$;
create function simfn.ms_like(value text, pattern text, escape text default null) returns boolean language plpgsql immutable as $$
declare out text := '^'; i int := 1; c text; close int; size int;
begin
    if value is null or pattern is null then return null; end if;
    size := length(pattern);
    while i <= size loop
        c := substr(pattern, i, 1);
        if escape is not null and c = escape then
            i := i + 1; out := out || '[' || substr(pattern, i, 1) || ']';
        elsif c = '%' then out := out || '(?:.|\n)*';
        elsif c = '_' then out := out || '(?:.|\n)';
        elsif c = '[' and strpos(substr(pattern, i + 1) collate "C", ']' collate "C") > 1 then
            close := i + strpos(substr(pattern, i + 1) collate "C", ']' collate "C");
            out := out || '[' || replace(substr(pattern, i + 1, close - i - 1) collate "C", '\', '\\') || ']';
            i := close;
        elsif c collate "C" ~ '[A-Za-z0-9]' then out := out || c;
        elsif ascii(c) > 127 then out := out || c;
        else out := out || '\' || c; end if;
        i := i + 1;
    end loop;
    return rtrim(value, ' ') collate "C" ~* (out || '\s*$') collate "C" or value collate "C" ~* (out || '$') collate "C";
end $$;
create function simfn.ms_hashbytes(kind text, value bytea) returns bytea language sql immutable strict as $$
    select case upper(kind) when 'MD5' then decode(md5(value), 'hex') when 'SHA2_512' then sha512(value)
        when 'SHA2_256' then sha256(value) end $$;
create function simfn.ms_hashbytes(kind text, value text) returns bytea language sql immutable strict
    as 'select simfn.ms_hashbytes(kind, convert_to(value, ''UTF8''))';
create function simfn.ms_hashbytes(kind text, value bpchar) returns bytea language sql immutable strict
    as 'select simfn.ms_hashbytes(kind, convert_to(value::text, ''UTF8''))';
-- The hash of a row, by which PostgreSQL joins rows that are compared whole.
create function sim.hash_row(value record) returns bigint language plpgsql immutable as $$
begin
    -- Rows that are equal have equal hashes, also if their types differ: a number has no zeros at
    -- its end, a text no blanks, and of a text only as much counts as a date has.
    return (
        select hashtextextended(string_agg(one.key || ' ' || case jsonb_typeof(one.value)
            when 'number' then trim_scale(one.value::numeric)::text
            when 'string' then left(rtrim(one.value #>> '{}'), 10)
            else jsonb_typeof(one.value) end, ',' order by one.key), 0)
        from jsonb_each(to_jsonb(value)) as one
    );
end $$;
create function sim.utf16(value text) returns bytea language plpgsql immutable strict as $$
declare out bytea := ''; code int; i int;
begin
    if octet_length(value) = char_length(value) then
        return decode(regexp_replace(encode(convert_to(value, 'UTF8'), 'hex'), '(..)', '\100', 'g'), 'hex');
    end if;
    for i in 1 .. char_length(value) loop
        code := ascii(substr(value, i, 1));
        if code > 65535 then
            out := out || sim.swap2(55296 + ((code - 65536) >> 10)) || sim.swap2(56320 + ((code - 65536) & 1023));
        else out := out || sim.swap2(code); end if;
    end loop;
    return out;
end $$;
create function sim.swap2(code int) returns bytea language sql immutable strict
    as $$ select set_byte(set_byte('\x0000'::bytea, 0, code & 255), 1, code >> 8) $$;

-- A sql_variant is stored as the name of its type and its value, after a character each.
create function sim.untagged(value text) returns text language sql immutable as $$
    select case when left(value, 1) collate "C" = chr(1) then split_part(value collate "C", chr(1), 3) else value end $$;
create function sim.untagged(value bpchar) returns text language sql immutable as 'select sim.untagged($1::text)';
create function sim.untagged(value anyelement) returns anyelement language sql immutable as 'select $1';
create function sim.tag(kind text, value text) returns bpchar language sql immutable as $$
    select case when left(value, 1) collate "C" = chr(1) then value else chr(1) || kind || chr(1) || value end::bpchar $$;
create function sim.tagged(kind text, value text) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'nvarchar'), $2) $$;
create function sim.tagged(kind text, value bpchar) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'nvarchar'), $2::text) $$;
create function sim.tagged(kind text, value bytea) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'varbinary'), '0x' || upper(encode($2, 'hex'))) $$;
create function sim.tagged(kind text, value int8) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'bigint'), $2::text) $$;
create function sim.tagged(kind text, value int4) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'int'), $2::text) $$;
create function sim.tagged(kind text, value int2) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'smallint'), $2::text) $$;
create function sim.tagged(kind text, value numeric) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'decimal'), $2::text) $$;
create function sim.tagged(kind text, value float8) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'float'), $2::text) $$;
create function sim.tagged(kind text, value float4) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'real'), $2::text) $$;
create function sim.tagged(kind text, value timestamp) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'datetime'), to_char($2, 'YYYY-MM-DD"T"HH24:MI:SS.US')) $$;
create function sim.tagged(kind text, value date) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'date'), $2::text) $$;
create function sim.tagged(kind text, value time) returns bpchar language sql immutable as $$ select sim.tag(coalesce(nullif($1, ''), 'time'), $2::text) $$;
create function sim.tagged(kind text, value sim.uniqueidentifier) returns bpchar language sql immutable as $$ select sim.tag('uniqueidentifier', upper($2::uuid::text)) $$;
create function sim.store_variant(value text) returns text language sql immutable strict as $$
    select case when left(value, 1) collate "C" = chr(1) then value
        when sim.fail(50002, 'The simulator stores a sql_variant only with CAST(.. AS sql_variant).') then '' end $$;
create function simfn.ms_sql_variant_property(value text, property text) returns text language sql immutable as $$
    select case when lower(property) = 'basetype' then split_part(value collate "C", chr(1), 2) end $$;

-- Classes of .NET. A geometry is its SRID in four bytes, and WKB.
create function simfn.ms_hierarchyid(value text) returns text language sql immutable strict as $$
    select case when value collate "C" ~ '^/(-?\d+(\.-?\d+)*/)*$' then value
        when sim.fail(6522, 'A .NET Framework error occurred during execution of user-defined routine or aggregate "hierarchyid": '
            || '24001: SqlHierarchyId.Parse failed because the input string is not a valid string representation of a SqlHierarchyId node.') then '' end $$;
create function simfn.ms_to_string(value text) returns text language sql immutable as 'select $1';
create function simfn.ms_to_string(value bytea) returns text language sql immutable as 'select simfn.ms_wkt($1)';
create function sim.reversed(value bytea) returns bytea language sql immutable strict as $$
    select string_agg(substring(value from n for 1), ''::bytea order by n desc) from generate_series(1, octet_length(value)) as n $$;
create function sim.number_at(value bytea, place int) returns int language sql immutable strict as $$
    select get_byte(value, place) | (get_byte(value, place + 1) << 8) | (get_byte(value, place + 2) << 16) | (get_byte(value, place + 3) << 24) $$;
create function sim.geometry(kind text, wkb bytea, srid int) returns bytea language plpgsql immutable strict as $$
declare shape int;
begin
    if octet_length(wkb) < 5 or get_byte(wkb, 0) <> 1 then
        perform sim.fail(6522, format('A .NET Framework error occurred during execution of user-defined routine or aggregate "%s": 24210: The well-known binary (WKB) input is not valid.', kind));
    end if;
    shape := sim.number_at(wkb, 1);
    if shape % 1000 not between 1 and 12 or shape > 4000 then
        perform sim.fail(6522, format('A .NET Framework error occurred during execution of user-defined routine or aggregate "%s": 24210: The well-known binary (WKB) has a shape of an unknown type.', kind));
    end if;
    if kind = 'geography' and srid not between 4120 and 4999 and srid <> 104001 then
        perform sim.fail(6522, 'A .NET Framework error occurred during execution of user-defined routine or aggregate "geography": 24204: The spatial reference identifier (SRID) is not valid.');
    end if;
    return sim.reversed(int4send(srid)) || wkb;
end $$;
create function simfn.ms_geometry_of_wkb(wkb bytea, srid int) returns bytea language sql immutable strict as $$ select sim.geometry('geometry', $1, $2) $$;
create function simfn.ms_geography_of_wkb(wkb bytea, srid int) returns bytea language sql immutable strict as $$ select sim.geometry('geography', $1, $2) $$;
create function simfn.ms_geometry_of_wkb(wkb bytea, srid numeric) returns bytea language sql immutable strict as $$ select sim.geometry('geometry', $1, $2::int) $$;
create function simfn.ms_geography_of_wkb(wkb bytea, srid numeric) returns bytea language sql immutable strict as $$ select sim.geometry('geography', $1, $2::int) $$;
-- POINT and LINESTRING, with Z and M.
create function sim.wkb_of_text(value text) returns bytea language plpgsql immutable strict as $$
declare parts text[]; points text[]; one text; out bytea; width int;
begin
    parts := regexp_match(upper(trim(value)) collate "C", '^(POINT|LINESTRING) *\(([^()]*)\)$');
    if parts is null then perform sim.fail(50002, 'The simulator knows the texts of POINT and LINESTRING only.'); end if;
    points := regexp_split_to_array(trim(parts[2]), ' *, *');
    width := cardinality(regexp_split_to_array(points[1], ' +'));
    out := '\x01'::bytea || sim.reversed(int4send(case parts[1] when 'POINT' then 1 else 2 end + case width when 2 then 0 when 3 then 1000 else 3000 end));
    if parts[1] = 'LINESTRING' then out := out || sim.reversed(int4send(cardinality(points))); end if;
    foreach one in array regexp_split_to_array(array_to_string(points, ' '), ' +') loop
        out := out || sim.reversed(float8send(one::float8));
    end loop;
    return out;
end $$;
create function simfn.ms_geometry_of_text(value text, srid int) returns bytea language sql immutable strict as $$ select sim.geometry('geometry', sim.wkb_of_text($1), $2) $$;
create function simfn.ms_geography_of_text(value text, srid int) returns bytea language sql immutable strict as $$ select sim.geometry('geography', sim.wkb_of_text($1), $2) $$;
create function simfn.ms_geometry_point(x numeric, y numeric, srid int) returns bytea language sql immutable strict as $$ select sim.geometry('geometry', sim.wkb_of_text(format('POINT(%s %s)', $1, $2)), $3) $$;
create function simfn.ms_geography_point(lat numeric, long numeric, srid int) returns bytea language sql immutable strict as $$ select sim.geometry('geography', sim.wkb_of_text(format('POINT(%s %s)', $2, $1)), $3) $$;
create function simfn.ms_srid(value bytea) returns int language sql immutable strict as 'select sim.number_at($1, 0)';
create function simfn.ms_wkb(value bytea) returns bytea language sql immutable strict as 'select substring($1 from 5)';
create function sim.store_xml(value text) returns text language sql immutable strict as $$
    select case when xml_is_well_formed_content(value) then regexp_replace(value collate "C", '^\s*<\?xml[^>]*\?>\s*', '')
        when sim.fail(9400, 'XML parsing: line 1, character ' || length(value) || ', unexpected end of input') then '' end $$;
create function sim.is_json(value text) returns boolean language plpgsql immutable strict as $$
begin
    perform value::json;
    return true;
exception when others then
    return false;
end $$;
create function sim.store_json(value text) returns text language sql immutable strict as $$
    select case when sim.is_json(value) then value when sim.fail(13609, 'JSON text is not properly formatted. Unexpected character is found.') then '' end $$;
create function sim.check_vector(value text, size int) returns void language sql immutable strict as $$
    select case when not sim.is_json(value) or json_array_length(value::json) <> size
        then sim.fail(42204, 'The vector does not have the ' || size || ' dimensions of its type.') end $$;
create function sim.check_row(size int) returns void language plpgsql as $$
begin
    if size > 8060 then
        perform sim.fail(511, format('Cannot create a row of size %s which is greater than the allowable maximum row size of 8060.', size));
    end if;
end $$;

-- Conversions; the length of the result is applied by the caller.
create function sim.to_text(value text, style int default 0) returns text language sql immutable as $$
    select case when left(value, 1) collate "C" = chr(1) then sim.to_text(sim.untagged(value), style) when value collate "C" ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}(Z[+-]\d\d:\d\d)?$' then sim.show_time(value, style) else value end $$;
create function sim.show_time(value text, style int) returns text language sql immutable as $$
    select case when value collate "C" ~ 'Z' then
        case style when 127 then left(value, 27) || 'Z'
            when 126 then sim.local_of(value) || right(value, 6)
            else replace(sim.local_of(value) collate "C", 'T', ' ') || ' ' || right(value, 6) end
        else case when style in (126, 127) then value when style = 23 then left(value, 10) else replace(value collate "C", 'T', ' ') end end $$;
create function sim.to_text(value timestamp, style int default 0) returns text language sql immutable as $$
    select case style when 126 then to_char(value, 'YYYY-MM-DD"T"HH24:MI:SS') || sim.fraction(value, 6)
        when 127 then to_char(value, 'YYYY-MM-DD"T"HH24:MI:SS') || sim.fraction(value, 6)
        when 121 then to_char(value, 'YYYY-MM-DD HH24:MI:SS.US') when 120 then to_char(value, 'YYYY-MM-DD HH24:MI:SS')
        when 23 then to_char(value, 'YYYY-MM-DD') when 112 then to_char(value, 'YYYYMMDD')
        else to_char(value, 'YYYY-MM-DD HH24:MI:SS.US') end $$;
create function sim.fraction(value timestamp, digits int) returns text language sql immutable as $$
    select case when extract(microseconds from value)::bigint % 1000000 = 0 then '' else to_char(value, '.US') end $$;
create function sim.to_text(value date, style int default 0) returns text language sql immutable
    as $$ select case style when 112 then to_char(value, 'YYYYMMDD') else to_char(value, 'YYYY-MM-DD') end $$;
create function sim.to_text(value time, style int default 0) returns text language sql immutable as 'select $1::text';
create function sim.to_text(value int8, style int default 0) returns text language sql immutable as 'select $1::text';
create function sim.to_text(value int4, style int default 0) returns text language sql immutable as 'select $1::text';
create function sim.to_text(value int2, style int default 0) returns text language sql immutable as 'select $1::text';
create function sim.to_text(value numeric, style int default 0) returns text language sql immutable as 'select $1::text';
create function sim.to_text(value float8, style int default 0) returns text language sql immutable as $$
    select case style when 3 then $1::text when 0 then $1::text else $1::text end $$;
create function sim.to_text(value sim.uniqueidentifier, style int default 0) returns text language sql immutable as 'select upper($1::uuid::text)';
create function sim.to_text(value bytea, style int default 0) returns text language sql immutable as $$
    select case style when 1 then '0x' || upper(encode($1, 'hex')) when 2 then upper(encode($1, 'hex'))
        else convert_from($1, 'LATIN1') end $$;
create function sim.to_binary(value bytea, style int default 0) returns bytea language sql immutable as 'select $1';
create function sim.to_binary(value text, style int default 0) returns bytea language sql immutable as $$
    select case when left(value, 1) collate "C" = chr(1) then decode(substring(sim.untagged(value) from 3), 'hex') else case style when 1 then decode(substring($1 from 3), 'hex') when 2 then decode($1, 'hex') else convert_to($1, 'UTF8') end end $$;
create function sim.to_binary(value int4, style int default 0) returns bytea language sql immutable as 'select int4send($1)';
create function sim.to_binary(value int8, style int default 0) returns bytea language sql immutable as 'select int8send($1)';
create function sim.to_binary(value int2, style int default 0) returns bytea language sql immutable as 'select int2send($1)';
create function sim.to_binary(value sim.uniqueidentifier, style int default 0) returns bytea language sql immutable as $$
    select substring(b from 4 for 1) || substring(b from 3 for 1) || substring(b from 2 for 1) || substring(b from 1 for 1)
        || substring(b from 6 for 1) || substring(b from 5 for 1) || substring(b from 8 for 1) || substring(b from 7 for 1)
        || substring(b from 9) from uuid_send($1::uuid) as x(b) $$;
create function sim.to_number(value numeric) returns numeric language sql immutable as 'select trunc($1)';
create function sim.to_number(value int8) returns numeric language sql immutable as 'select $1::numeric';
create function sim.to_number(value float8) returns numeric language sql immutable as 'select trunc($1::numeric)';
create function sim.to_number(value text) returns numeric language sql immutable as $$
    select case when trim($1) collate "C" ~ '^[+-]?\d*$' then coalesce(nullif(trim($1), ''), '0')::numeric
        when sim.fail(245, 'Conversion failed when converting the varchar value ''' || $1 || ''' to data type int.') then 0 end $$;
create function sim.to_number(value bytea) returns numeric language sql immutable as $$
    select ('x' || lpad(encode($1, 'hex'), 16, '0'))::bit(64)::bigint::numeric $$;
create function sim.to_bit(value numeric) returns int2 language sql immutable as 'select ($1 <> 0)::int::int2';
create function sim.to_bit(value text) returns int2 language sql immutable as $$ select (case lower($1) when 'true' then 1 when 'false' then 0 else ($1::numeric <> 0)::int end)::int2 $$;
create function sim.to_stamp(value timestamp) returns timestamp language sql immutable as 'select $1';
create function sim.to_stamp(value date) returns timestamp language sql immutable as 'select $1::timestamp';
create function sim.to_stamp(value time) returns timestamp language sql immutable as $$ select '1900-01-01'::date + $1 $$;
create function sim.to_stamp(value text) returns timestamp language sql immutable as 'select sim.stamp($1)';
create function sim.to_time7(value text) returns bpchar language sql immutable as 'select sim.store_datetime2($1)::bpchar';
create function sim.to_time7(value timestamp) returns bpchar language sql immutable as $$ select sim.store_datetime2($1::text)::bpchar $$;
create function sim.to_time7(value date) returns bpchar language sql immutable as $$ select sim.store_datetime2($1::timestamp::text)::bpchar $$;
create function sim.to_clock7(value text) returns bpchar language sql immutable as 'select sim.store_time($1)::bpchar';
create function sim.to_clock7(value timestamp) returns bpchar language sql immutable as $$ select sim.store_time($1::text)::bpchar $$;
create function sim.to_clock7(value time) returns bpchar language sql immutable as $$ select sim.store_time($1::text)::bpchar $$;
create function sim.to_dto(value text) returns bpchar language sql immutable as 'select sim.store_dto($1)::bpchar';
create function sim.to_dto(value timestamp) returns bpchar language sql immutable as $$ select sim.store_dto($1::text || '+00:00')::bpchar $$;
create function sim.to_guid(value text) returns sim.uniqueidentifier language sql immutable as 'select $1::uuid::sim.uniqueidentifier';
create function sim.to_guid(value sim.uniqueidentifier) returns sim.uniqueidentifier language sql immutable as 'select $1';
create function sim.to_guid(value bytea) returns sim.uniqueidentifier language sql immutable as $$
    select encode(substring($1 from 4 for 1) || substring($1 from 3 for 1) || substring($1 from 2 for 1) || substring($1 from 1 for 1)
        || substring($1 from 6 for 1) || substring($1 from 5 for 1) || substring($1 from 8 for 1) || substring($1 from 7 for 1)
        || substring($1 from 9), 'hex')::uuid::sim.uniqueidentifier $$;

-- Names and properties.
create function simfn.ms_schema_id(name text default 'dbo') returns int language sql stable as $$
    select schema_id from sys.schemas s where lower(s.name::text) = lower($1) $$;
create function simfn.ms_schema_name(id int default 1) returns text language sql stable as $$ select s.name::text from sys.schemas s where schema_id = $1 $$;
create function simfn.ms_object_id(name text, kind text default null) returns int language sql stable as $$
    select o.object_id from sys.all_objects o join sys.schemas s on s.schema_id = o.schema_id,
        (select sim.name_parts($1)) as p(parts)
    where lower(o.name::text) = lower(parts[cardinality(parts)])
      and ((left($1, 1) = '#' and left(s.name::text, 7) = 'pg_temp') or lower(s.name::text) =
           case when cardinality(parts) > 1 then lower(coalesce(nullif(parts[cardinality(parts) - 1], ''), 'dbo')) else 'dbo' end)
      and ($2 is null or trim(o.type::text) = upper(trim($2))) limit 1 $$;
create function simfn.ms_object_name(id int, db int default null) returns text language sql stable as 'select o.name::text from sys.all_objects o where object_id = $1';
create function simfn.ms_object_schema_name(id int, db int default null) returns text language sql stable as $$
    select s.name::text from sys.all_objects o join sys.schemas s on s.schema_id = o.schema_id where object_id = $1 $$;
create function simfn.ms_col_name(id int, number int) returns text language sql stable as 'select c.name::text from sys.columns c where object_id = $1 and column_id = $2';
create function simfn.ms_col_length(name text, col text) returns int language sql stable as $$
    select c.max_length::int from sys.columns c where object_id = simfn.ms_object_id($1) and lower(c.name::text) = lower($2) $$;
create function simfn.ms_columnproperty(id int, col text, property text) returns int language sql stable as $$
    select case lower($3) when 'isidentity' then c.is_identity when 'iscomputed' then c.is_computed
        when 'allowsnull' then c.is_nullable when 'columnid' then c.column_id when 'charmaxlen' then
            case when t.name in ('nvarchar', 'nchar') and c.max_length > 0 then c.max_length / 2 else c.max_length end end
      from sys.columns c join sys.types t on t.user_type_id = c.user_type_id where object_id = $1 and lower(c.name::text) = lower($2) $$;
create function simfn.ms_objectproperty(id int, property text) returns int language sql stable as $$
    select case lower($2) when 'tablehasidentity' then (select count(*) from sys.columns c where c.object_id = $1 and is_identity = 1)
        when 'tablehasprimarykey' then (select count(*) from sys.key_constraints k where k.parent_object_id = $1 and type = 'PK')
        when 'isusertable' then (select count(*) from sys.tables t where t.object_id = $1)
        when 'ismsshipped' then 0 end::int $$;
create function simfn.ms_objectpropertyex(id int, property text) returns int language sql stable as 'select simfn.ms_objectproperty($1, $2)';
create function simfn.ms_type_name(id int) returns text language sql stable as 'select t.name::text from sys.types t where user_type_id = $1';
create function simfn.ms_type_id(name text) returns int language sql stable as 'select t.user_type_id from sys.types t where t.name::text = lower($1)';
create function simfn.ms_ident_current(name text) returns numeric language sql stable as $$
    select last_value from sys.identity_columns where object_id = simfn.ms_object_id($1) $$;
create function simfn.ms_ident_seed(name text) returns numeric language sql stable as $$
    select seed_value from sys.identity_columns where object_id = simfn.ms_object_id($1) $$;
create function simfn.ms_ident_incr(name text) returns numeric language sql stable as $$
    select increment_value from sys.identity_columns where object_id = simfn.ms_object_id($1) $$;
create function simfn.ms_db_id(name text default null) returns int language sql stable
    as $$ select d.database_id from sys.databases d where lower(d.name::text) collate "C" = lower(coalesce($1, current_database()::text)) collate "C" $$;
create function simfn.ms_db_name(id int default null) returns text language sql stable as $$ select current_database()::text $$;
create function simfn.ms_original_db_name() returns text language sql stable as $$ select current_database()::text $$;
create function simfn.ms_app_name() returns text language sql stable as $$ select current_setting('sim.app', true) $$;
create function simfn.ms_host_name() returns text language sql stable as $$ select current_setting('sim.host', true) $$;
create function simfn.ms_suser_sname() returns text language sql stable as $$ select current_setting('sim.login', true) $$;
create function simfn.ms_suser_name() returns text language sql stable as $$ select current_setting('sim.login', true) $$;
create function simfn.ms_original_login() returns text language sql stable as $$ select current_setting('sim.login', true) $$;
create function simfn.ms_user_name() returns text language sql stable as $$ select case when current_setting('sim.login', true) in ('sa', 'tests') then 'dbo' else current_setting('sim.login', true) end $$;
create function simfn.ms_serverproperty(name text) returns text language sql stable as $$
    select case lower($1) when 'productversion' then sim.setting('productversion', '16.0.4120.1')
        when 'productmajorversion' then split_part(sim.setting('productversion', '16.0.4120.1'), '.', 1)
        when 'productlevel' then 'RTM' when 'edition' then sim.setting('edition', 'Developer Edition (64-bit)')
        when 'engineedition' then sim.setting('engineedition', '3') when 'servername' then 'SIMULATED'
        when 'machinename' then 'SIMULATED' when 'collation' then 'SQL_Latin1_General_CP1_CI_AS'
        when 'isclustered' then '0' when 'ishadrenabled' then sim.setting('hadr', '0') when 'isintegratedsecurityonly' then '0'
        when 'issingleuser' then '0' when 'instancename' then null end $$;
create function simfn.ms_databasepropertyex(db text, name text) returns text language sql stable as $$
    select case lower($2) when 'updateability' then case when current_setting('sim.read_only', true) = '1' then 'READ_ONLY' else 'READ_WRITE' end
        when 'collation' then 'SQL_Latin1_General_CP1_CI_AS' when 'status' then 'ONLINE' when 'recovery' then sim.setting('recovery_model', 'FULL')
        when 'edition' then 'Standard' end $$;
create function simfn.ms_connectionproperty(name text) returns text language sql stable as $$
    select case lower($1) when 'net_transport' then 'TCP' when 'protocol_type' then 'TSQL' when 'client_net_address' then '127.0.0.1' end $$;
create function sim.is_owner() returns boolean language sql stable as $$
    select current_setting('sim.login', true) in ('sa', 'tests') or exists (select from sim.rights r where r.login = current_setting('sim.login', true) and kind = 'role' and name = 'db_owner') $$;
create function simfn.ms_is_srvrolemember(name text) returns int language sql stable as $$
    select (current_setting('sim.login', true) in ('sa', 'tests') or exists (select from sim.rights r where r.login = current_setting('sim.login', true) and kind = 'server role' and r.name = lower($1)))::int $$;
create function simfn.ms_is_member(role text) returns int language sql stable as $$
    select (sim.is_owner() or exists (select from sim.rights r where r.login = current_setting('sim.login', true) and kind = 'role' and r.name = lower($1)))::int $$;
create function simfn.ms_is_rolemember(role text) returns int language sql stable as 'select simfn.ms_is_member($1)';
create function simfn.ms_has_perms_by_name(securable text, class text, permission text) returns int language sql stable as $$
    select (sim.is_owner() or exists (select from sim.rights r where r.login = current_setting('sim.login', true)
        and kind = 'permission' and (r.name = lower($3) or r.name = lower($3 || ' on ' || coalesce($1, '')))))::int $$;
create function simfn.ms_has_dbaccess(name text) returns int language sql stable as $$ select case when exists (select from sys.databases d where d.name::text = $1) then 1 end $$;
create function simfn.ms_checksum_one(value text) returns int language sql immutable as $$ select ('x' || left(md5(coalesce($1, '')), 8))::bit(32)::int $$;
create function simfn.ms_binary_checksum(variadic text[]) returns int language sql immutable as $$ select simfn.ms_checksum_one(array_to_string($1, '|', '~')) $$;
create function simfn.ms_checksum(variadic text[]) returns int language sql immutable as $$ select simfn.ms_checksum_one(lower(array_to_string($1, '|', '~'))) $$;
create function sim.int_xor(int, int) returns int language sql immutable as 'select $1 # coalesce($2, 0)';
create aggregate simfn.ms_checksum_agg(int) (sfunc = sim.int_xor, stype = int, initcond = '0');
create function simfn.ms_isjson(value text) returns int language plpgsql immutable strict as $$ begin perform value::json; return 1; exception when others then return 0; end $$;
create function simfn.ms_isnumeric(value text) returns int language sql immutable as $$ select coalesce(($1 collate "C" ~ '^\s*[+-]?\d+(\.\d*)?\s*$')::int, 0) $$;
create function simfn.ms_format(value numeric, form text) returns text language sql immutable as $$ select $1::text $$;
create function simfn.ms_cursor_status(a text, b text) returns int language sql as 'select -3';
create function simfn.ms_scope_identity() returns numeric language sql stable as $$ select nullif(current_setting('sim.identity', true), '')::numeric $$;
create function simfn.ms_xact_state() returns int language sql stable as $$ select coalesce(nullif(current_setting('sim.trancount', true), ''), '0')::int $$;
create function simfn.ms_rand() returns float8 language sql volatile as 'select random()';
