' The worksheet functions of xlperf: each hands the values of its cells to Python through xlwings.
' Errors of Python come back as error values of Excel; XLPERF_CHECK says them in words.
Option Explicit

Private Const ADDIN_VERSION As String = "VERSION_OF_PACKAGE"
Private Python As Object
Private Stale As String

Private Sub Connect()
    ' Starts Python, and asks once whether its xlperf is the one that this add-in is of
    If Not Python Is Nothing Then Exit Sub
    Set Python = XLPy
    On Error Resume Next
    Stale = "An older xlperf computes than " & ADDIN_VERSION & ", which made this add-in: run xlperf install excel --update"
    Stale = LinesOf(AsCells(Python.CallUDF("SERVER_MODULE", "addin_task", Array("version", ADDIN_VERSION), ThisWorkbook, ThisWorkbook.Worksheets(1).Range("A1"))))
    If Stale <> "" Then Application.StatusBar = Stale
End Sub

Private Function Computed(ByVal Called As String, ByVal Given As Variant) As Variant
    ' Python stays connected; where its process has ended, it is started again once
    Dim Again As Boolean
    On Error GoTo Failed
Start:
    Connect
    Computed = AsCells(Python.CallUDF("SERVER_MODULE", Called, Given, ThisWorkbook, Application.Caller))
    Exit Function
Failed:
    If Python Is Nothing Or Again Then
        Set Python = Nothing
        Computed = CVErr(2015)
        If Called = "XLPERF_CHECK" Then Computed = "Python does not answer (" & Left$(Err.Description, 200) & "); run: xlperf install excel --check"
        Exit Function
    End If
    Set Python = Nothing
    Again = True
    Resume Start
End Function

Private Function CellsOf(Optional ByRef Given As Variant) As Variant
    If IsMissing(Given) Then
        CellsOf = Empty
    ElseIf TypeName(Given) = "Range" Then
        CellsOf = ValuesOf(Given)
    Else
        CellsOf = Given
    End If
End Function

Private Function PlaceOf(Optional ByRef Given As Variant) As Variant
    ' Where the cells stand: plans of one table are computed together
    PlaceOf = Empty
    If IsMissing(Given) Then Exit Function
    If TypeName(Given) = "Range" Then PlaceOf = WholeAddress(Given)
End Function

Private Function WholeAddress(ByVal Area As Object) As Variant
    WholeAddress = Area.Address(True, True, 1, True)
End Function

Private Function ValuesOf(ByVal Area As Object) As Variant
    ' Without formats: a number is a number in Currency and date cells too; of whole columns the used part
    Dim Last As Long
    If Area.Areas.Count > 1 Then Err.Raise 5
    Last = Area.Rows.Count
    If Last = Area.Worksheet.Rows.Count Then Last = Area.Worksheet.UsedRange.Row + Area.Worksheet.UsedRange.Rows.Count - 1
    ValuesOf = Area.Resize(Last).Value2
End Function

Private Function CellsOfEach(ByVal Given As Variant) As Variant
    Dim Place As Long
    For Place = LBound(Given) To UBound(Given)
        Given(Place) = CellsOf(Given(Place))
    Next Place
    CellsOfEach = Given
End Function

Private Function AsCells(ByVal Given As Variant) As Variant
    Dim Row As Long, Column As Long
    If Not IsArray(Given) Then
        AsCells = AsCell(Given)
        Exit Function
    End If
    If IsRow(Given) Then
        For Column = LBound(Given) To UBound(Given)
            Given(Column) = AsCell(Given(Column))
        Next Column
    Else
        For Row = LBound(Given, 1) To UBound(Given, 1)
            For Column = LBound(Given, 2) To UBound(Given, 2)
                Given(Row, Column) = AsCell(Given(Row, Column))
            Next Column
        Next Row
    End If
    AsCells = Given
End Function

Private Function IsRow(ByRef Given As Variant) As Boolean
    ' xlwings hands a block of one row over as an array of one dimension
    Dim Last As Long
    On Error GoTo OneDimension
    Last = UBound(Given, 2)
    Exit Function
OneDimension:
    IsRow = True
End Function

Private Function AsCell(ByVal Given As Variant) As Variant
    AsCell = Given
    If IsEmpty(Given) Then
        AsCell = ""
    ElseIf VarType(Given) = vbString Then
        Select Case Given
            Case "#N/A": AsCell = CVErr(2042)
            Case "#VALUE!": AsCell = CVErr(2015)
            Case "#REF!": AsCell = CVErr(2023)
            Case "#NAME?": AsCell = CVErr(2029)
            Case "#NUM!": AsCell = CVErr(2036)
            Case "#DIV/0!": AsCell = CVErr(2007)
        End Select
    End If
End Function

Private Sub Describe(ByVal Category As String, ByVal Names As String, ByVal Texts As Variant)
    ' Texts of the arguments for the function wizard
    Dim Wrapper As Variant
    On Error Resume Next
    For Each Wrapper In Split(Names, " ")
        Application.MacroOptions Macro:="'" & ThisWorkbook.Name & "'!" & Wrapper, Category:=Category, ArgumentDescriptions:=Texts
    Next Wrapper
End Sub

