create function sim.is_captured(id int, col text) returns int language plpgsql stable as $$
begin
    if to_regclass('cdc.change_tables') is null then return 0; end if;
    return (exists (select from cdc.change_tables t join cdc.captured_columns c on c.object_id = t.object_id where t.source_object_id = id and c.column_name = col))::int;
end $$;
